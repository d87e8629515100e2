"""One module for each noun. A route parses, calls one function of `api.service`, and returns."""
