"""`python -m reproduction`: Ctrl-C is seen to before anything that takes time is imported."""

from fedlap.stopping import end_on_interrupt, ignore_interrupts


def main() -> None:
    end_on_interrupt()
    from fedlap.cli.main import run
    from reproduction.commands import app

    try:
        run(app)
    finally:
        ignore_interrupts()


if __name__ == "__main__":
    main()
