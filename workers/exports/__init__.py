"""Writes the metrics of an attempt as files for other tools: TensorBoard, MLflow, Weights & Biases.

The supervisor starts `python -m workers.exports` once the ranks are dead, a process for each format, since those
libraries take their time and their memory. Each is written by the tool's own library, an extra of the worker's
installation (`shardyard[export]`).
"""
