"""What the routes call, one module for each noun, and in it one function for each thing a user can ask for.

No web framework in here. Raises, from every function that names a job: NotFound (also for a job of
another tenant). From every function that asks Redis: Unavailable, while the control Redis does not answer.
"""
