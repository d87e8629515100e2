"""One module for each noun. A route parses, calls one function of `api.services`, and returns."""
