"""`python -m workers`: one node's worker. Does nothing when imported, since forkserver children may."""

import argparse


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers", description="Run one node's worker; see SHARDYARD_*.")
    parser.add_argument(
        "--stop-attempts-on-exit",
        action="store_true",
        help="on SIGTERM, end this node's attempts first; their jobs go back to the queue",
    )
    options = parser.parse_args()
    from workers import app

    app.stop_attempts_on_exit = options.stop_attempts_on_exit
    app.app.worker_main(["worker", "--loglevel", app.settings.log_level])


if __name__ == "__main__":
    main()
