"""One function per route of single sign-on that a command line uses. They need no token."""

import json

from shardyard.client.transport import HttpCall
from shardyard.contract import responses


def show_sign_in_ways() -> HttpCall[responses.SignInWays]:
    return HttpCall(method="GET", path="/v1/sign-in", kind=responses.SignInWays, repeat=True)


def begin_device_sign_in() -> HttpCall[responses.DeviceSignIn]:
    return HttpCall(method="POST", path="/v1/sign-in/device", kind=responses.DeviceSignIn, repeat=True)


def finish_device_sign_in(device_code: str) -> HttpCall[responses.DeviceSignInState]:
    """Not repeated: the token is in one answer alone."""
    return HttpCall(
        method="POST",
        path="/v1/sign-in/device/token",
        kind=responses.DeviceSignInState,
        content=json.dumps({"device_code": device_code}).encode(),
        headers={"Content-Type": "application/json"},
    )
