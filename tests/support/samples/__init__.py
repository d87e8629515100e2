"""Records, specs, files and runs that tests are fed with."""
