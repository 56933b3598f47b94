"""``python -m gcr``: the command line, from an installation or a bare checkout."""

import sys


def main() -> None:
    try:
        try:
            import rich  # noqa: F401
            import typer  # noqa: F401
        except ImportError as missing:
            print(f"error: the command line needs {missing.name}: pip install typer rich", file=sys.stderr)
            sys.exit(2)
        from gcr import cli

        sys.exit(cli.run_cli())
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
