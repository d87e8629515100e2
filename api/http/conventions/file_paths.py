"""Paths of files in the paths of routes.

A name of a file may have line breaks, at which starlette's own converter ends.
"""

from starlette.convertors import PathConvertor, register_url_convertor


class AnyPath(PathConvertor):
    regex = "(?s:.*)"


register_url_convertor("path", AnyPath())

#: What a route has where the path of a file stands.
FILE_PATH = "{path:path}"
