"""What a tenant, or one of its tokens, may use."""

import msgspec

#: A quota on device-hours is one on those used within so many hours.
DEFAULT_WINDOW_HOURS, MAX_WINDOW_HOURS = 24, 24 * 31


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """None: as much as there is. `jobs` are those that have not ended, `running` those of them that have devices, and
    `devices` the devices that they have. A job does not start once `device_hours` are used within the window; what runs
    goes on. `spec_bytes` are those of all jobs in the control Redis. Bundles and files that
    jobs have stored (`file_bytes`, as counted last) are the tenant's: a token has no limits of them."""

    jobs: int | None = None
    running: int | None = None
    devices: int | None = None
    device_hours: float | None = None
    window_hours: int = DEFAULT_WINDOW_HOURS
    spec_bytes: int | None = None
    bundle_bytes: int | None = None
    file_bytes: int | None = None


#: The limits of a quota, in the order in which they are shown.
LIMITS = ("jobs", "running", "devices", "device_hours", "spec_bytes", "bundle_bytes", "file_bytes")
#: Those that only a tenant has, and what they limit.
OF_TENANTS = {"bundle_bytes": "bundles", "file_bytes": "files of jobs"}
