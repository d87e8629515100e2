"""Why a run hangs: which ranks wait in which collective, and which rank is not there."""
