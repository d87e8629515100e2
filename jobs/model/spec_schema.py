"""Names of the JSON Schemas of a spec's parts. Clients are generated from the schemas, so these names stay, whatever
the classes are called."""

from pydantic.json_schema import GenerateJsonSchema

#: By the classes whose names would be those of the builders in `shardyard.specs.builders`.
_NAMES = {
    "ComponentSpec": "Component",
    "DataSpec": "Data",
    "EvaluationSpec": "Evaluation",
    "ParallelismSpec": "Parallelism",
    "SchedulerSpec": "Scheduler",
}


def schema_name(model: type) -> str:
    return _NAMES.get(model.__name__, model.__name__)


class SpecSchemaGenerator(GenerateJsonSchema):
    """What `model_json_schema` of a spec needs, so that references have these names too."""

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(_NAMES.get(name, name))
