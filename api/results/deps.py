"""The service dependency of the routes of results."""

from typing import Annotated

from fastapi import Depends

from api.http.deps import service_of
from api.results.service import ResultService

ServiceDep = Annotated[ResultService, Depends(service_of(ResultService))]
