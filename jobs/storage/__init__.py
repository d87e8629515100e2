"""Storage on other hosts: where files that outlive an attempt are carried, if no directory is shared."""
