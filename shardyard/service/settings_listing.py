"""Lists the service's settings: the variable of each, its value here, and what it does."""

import os
from typing import Any

from pydantic import ValidationError

from jobs.model.settings import Settings
from shardyard.contract.errors import FieldError, InvalidRequest


def list_settings() -> list[dict[str, Any]]:
    """A row for each setting. `set` is true if its variable is in the environment; secrets are masked.

    Raises:
        InvalidRequest: a variable has a value that its setting does not take.
    """
    try:
        values = Settings().model_dump(mode="json")
    except ValidationError as error:
        wrong = (
            FieldError(f"SHARDYARD_{str(detail['loc'][0]).upper()}", f"{detail['msg']} (got {detail['input']!r})")
            for detail in error.errors()
        )
        raise InvalidRequest("the settings are not valid", fields=tuple(wrong)) from None
    return [
        {
            "variable": f"SHARDYARD_{name.upper()}",
            "value": values[name],
            "set": f"SHARDYARD_{name.upper()}" in os.environ,
            "description": field.description or "",
        }
        for name, field in Settings.model_fields.items()
    ]
