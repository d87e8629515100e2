"""Pools of simulated nodes that play a trace of jobs, under several orders of the queue."""
