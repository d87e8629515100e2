"""How many files and connections this process may have open."""

import resource


def raise_descriptor_limit(wanted: int) -> int:
    """Have as many descriptors as are wanted, or as the system's own limit for this account allows; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return wanted if soft == resource.RLIM_INFINITY else soft
