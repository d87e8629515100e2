"""`python -m workers`: one node's worker. Does nothing when imported, since forkserver children may."""

from workers.node import shutdown


def main() -> None:
    how = shutdown.parse_options()
    from workers import app

    app.shutdown_options = how
    # Not by Celery's command line, which imports a shell with completion and history.
    app.app.Worker(loglevel=app.settings.log_level).start()


if __name__ == "__main__":
    main()
