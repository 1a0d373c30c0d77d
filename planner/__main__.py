"""`planner` and `python -m planner`."""


def main() -> None:
    """Entry point: imports take a moment, and Ctrl-C in it is as quiet as later on."""
    try:
        from planner.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
