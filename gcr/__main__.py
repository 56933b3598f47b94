"""``python -m gcr``: the command line, from an installation or a bare checkout."""

import codecs
import gc
import io
import os
import sys


def main() -> None:
    # Importing torch and reading results makes very many objects that stay. Looking through them for garbage again and
    # again took some 0.4 s of a command of 3 s.
    gc.set_threshold(100_000, 50, 50)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            import rich  # noqa: F401
            import typer  # noqa: F401
        except ImportError as missing:
            print(f"error: the command line needs {missing.name}: pip install typer rich", file=sys.stderr)
            sys.exit(2)
        from gcr.cli import main as cli
        from gcr.cli.console import spelled

        codecs.register_error("spelled", spelled)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="spelled")
        sys.exit(cli.run_cli())
    except OSError as error:
        if error.filename is not None:
            raise
        print(f"error: what is printed cannot be written ({error.strerror})", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what Python would still write at its end
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
