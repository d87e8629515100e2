"""What one process of a script has sent about its gradients, in bounded memory."""

from dataclasses import dataclass, field

from jobs.protocol.probe_records import GradientSync, LossForm, NormLayers, ParameterSearch

#: Wrapped modules of a process that are remembered.
MAX_WRAPPED = 64
#: Forms of losses of a process, one for each number of rows.
MAX_FORMS = 64


@dataclass(slots=True)
class GradientObservations:
    """The latest records of each kind."""

    syncs: dict[int, GradientSync] = field(default_factory=dict)  # by number of the wrapper
    forms: dict[int, LossForm] = field(default_factory=dict)  # by number of rows
    norms: dict[str, NormLayers] = field(default_factory=dict)  # by module
    searches: dict[int, ParameterSearch] = field(default_factory=dict)  # by number of the wrapper

    def add_sync(self, sync: GradientSync) -> None:
        if sync.number in self.syncs or len(self.syncs) < MAX_WRAPPED:
            self.syncs[sync.number] = sync

    def add_norms(self, norms: NormLayers) -> None:
        if norms.module in self.norms or len(self.norms) < MAX_WRAPPED:
            self.norms[norms.module] = norms

    def add_search(self, search: ParameterSearch) -> None:
        if search.number in self.searches or len(self.searches) < MAX_WRAPPED:
            self.searches[search.number] = search

    def add_form(self, form: LossForm) -> None:
        if len(self.forms) < MAX_FORMS:
            self.forms.setdefault(form.rows, form)
