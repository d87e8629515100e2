"""`python -m workers`: one node's worker. Does nothing when imported, since forkserver children may."""

from workers import leaving


def main() -> None:
    how = leaving.parse()
    from workers import app

    app.leaving = how
    app.app.worker_main(["worker", "--loglevel", app.settings.log_level])


if __name__ == "__main__":
    main()
