"""What a server is told: command line over ``config.yaml`` over defaults."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from everstep.client.home import Home, default_home
from everstep.model.errors import BadInput, Problem
from everstep.server.listening import LOOPBACK, Tls

_KEYS = {
    "host": str,
    "port": int,
    "insecure": bool,
    "tls": bool,
    "tls_cert": str,
    "tls_key": str,
    "advertise": str,
    "store": str,
    "backup": str,
    "files": str,
}
_NUMBERS = ("lease_s", "backup_s")
_ALL_KEYS = sorted([*_KEYS, *_NUMBERS, "buckets", "providers"])


@dataclass(frozen=True, slots=True)
class Options:
    """Everything a server can be told.

    Attributes:
        port: None = the one it had last, else a free one.
        told: what the command line says of where and what to serve, by flag; flags without a value have an empty one.
        told_where: whether anything was said about where to listen and how; if not, it is as last time.
        own_tls: serve with a certificate of the server's own making (``server.tls``).
        advertise: base URL that machines are told to call; empty = what the server listens on.
        store: URL of the journal; empty = SQLite in the folder.
        providers: name of each provider and its arguments.
        log_file: None = standard error.
        lease_s: agents train on without a word from the server for so long (rule 3), seconds.
        backup: URL of the folder or bucket that backups go to; empty = none are made.
        backup_s: pause between two, seconds.
        buckets: URL of each bucket that machines reach by URLs of the server, and its options (``server.buckets``).
        files: URL of the place in one of them where folders and outputs of jobs lie; empty = on the server's own disk.
    """

    home: Home
    host: str = LOOPBACK
    port: int | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    told_where: bool = False
    tls: Tls | None = None
    own_tls: bool = False
    insecure: bool = False
    advertise: str = ""
    store: str = ""
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"local": {}})
    log_file: Path | None = None
    verbose: bool = False
    lease_s: float = 900.0
    backup: str = ""
    backup_s: float = 300.0
    buckets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    files: str = ""


def parse(arguments: Sequence[str]) -> Options:
    """Options of ``python -m everstep.server``; paths on the command line are relative to where it was started.

    Raises:
        BadInput: ``config.yaml`` or a combination of options is wrong.
        SystemExit: the command line is not understood (2), or help was asked for (0).
    """
    given = _parser().parse_args(arguments)
    home = Home(Path(given.home).expanduser().resolve()) if given.home else default_home()
    config = read_config(home.config_file)

    def choose(name: str) -> Any:
        value = getattr(given, name)
        return config.get(name) if value is None or value is False else value

    certificate, key = choose("tls_cert"), choose("tls_key")
    if bool(certificate) != bool(key):
        raise BadInput(Problem("--tls-cert", "", "a certificate needs its key, and a key its certificate"))
    own_tls = bool(choose("tls")) and not certificate
    advertise = _advertised(choose("advertise") or "", tls=bool(certificate) or own_tls)
    providers = dict(cast("dict[str, dict[str, Any]]", config.get("providers") or {"local": {}}))
    if given.cloud is not None:
        box = Path(given.cloud).expanduser().resolve()
        if not box.is_file():
            raise BadInput(Problem("--cloud", "", f"there is no file {box}"))
        providers["local"] = {**providers.get("local", {}), "config_path": str(box)}
    return Options(
        home=home,
        host=choose("host") or LOOPBACK,
        port=choose("port"),
        tls=Tls(_path(certificate, home), _path(key, home)) if certificate else None,
        told=_told(given),
        told_where=any(choose(name) for name in ("host", "tls", "tls_cert", "insecure", "advertise")),
        own_tls=own_tls,
        insecure=bool(choose("insecure")),
        advertise=advertise,
        store=choose("store") or "",
        providers=providers,
        log_file=Path(given.log_file).resolve() if given.log_file else None,
        verbose=given.verbose,
        lease_s=float(config.get("lease_s", 900.0)),
        backup=choose("backup") or "",
        backup_s=float(config.get("backup_s", 300.0)),
        buckets={url: options or {} for url, options in (config.get("buckets") or {}).items()},
        files=config.get("files") or "",
    )


def read_config(path: Path) -> dict[str, Any]:
    """The mapping in ``config.yaml``, empty if there is no file. Raises BadInput naming every fault."""
    import yaml

    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise BadInput(Problem(f"{path}{line}", "", f"is not YAML: {error.problem}")) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(Problem(str(path), "", f"cannot be read: {error}")) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise BadInput(Problem(str(path), "", "expected a mapping of keys to values"))
    problems = [problem for key, value in data.items() if (problem := _fault(path, str(key), value)) is not None]
    if problems:
        raise BadInput(*problems)
    return data


def _fault(path: Path, key: str, value: Any) -> Problem | None:
    if key == "providers":
        good = isinstance(value, dict) and value and all(isinstance(v, dict) or v is None for v in value.values())
        if not good:
            return Problem(str(path), key, "expected a mapping of provider names to their options")
        for name, options in list(value.items()):
            value[name] = options or {}
        return None
    if key == "buckets":
        return None if _is_of_texts(value) else Problem(str(path), key, "expected a mapping of URLs to their options")
    if key in _NUMBERS:
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
        return None if number else Problem(str(path), key, "expected a number of seconds above 0")
    if key not in _KEYS:
        import difflib

        near = difflib.get_close_matches(key, _ALL_KEYS, 1)
        return Problem(
            str(path), key, "unknown key", f"did you mean '{near[0]}'?" if near else f"known: {', '.join(_ALL_KEYS)}"
        )
    wanted = _KEYS[key]
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        words = {str: "a text", int: "a whole number", bool: "true or false"}
        return Problem(str(path), key, f"expected {words[wanted]}")
    if key == "port" and isinstance(value, int) and not 0 < value < 65_536:
        return Problem(str(path), key, "expected a port from 1 to 65535")
    return None


def _is_of_texts(value: Any) -> bool:
    """Whether it maps texts to mappings of texts, or to nothing."""
    return isinstance(value, dict) and all(
        isinstance(url, str) and (of is None or (isinstance(of, dict) and all(isinstance(v, str) for v in of.values())))
        for url, of in value.items()
    )


def _advertised(url: str, *, tls: bool) -> str:
    """The URL without a slash at its end. Raises BadInput unless machines can call it and would believe who answers."""
    if not url:
        return ""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(Problem("--advertise", "", f"'{url}' is not the URL of a server", "write https://HOST:PORT"))
    if tls and parts.scheme != "https":
        raise BadInput(
            Problem("--advertise", "", f"the server speaks TLS, '{url}' does not", "write https://HOST:PORT")
        )
    return url.rstrip("/")


def _told(given: argparse.Namespace) -> dict[str, str]:
    told = {name: value for name, value in vars(given).items() if value not in (None, False)}
    for name in ("home", "log_file", "verbose"):
        told.pop(name, None)
    for name in told.keys() & {"cloud", "tls_cert", "tls_key"}:
        told[name] = Path(told[name]).expanduser().resolve()
    return {f"--{name.replace('_', '-')}": "" if value is True else str(value) for name, value in told.items()}


def _path(text: str, home: Home) -> Path:
    path = Path(text).expanduser()
    return path if path.is_absolute() else (home.path / path if (home.path / path).exists() else path.resolve())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m everstep.server", description="The everstep server, in the foreground.", allow_abbrev=False
    )
    parser.add_argument("--home", help="folder of the installation (default: $EVERSTEP_HOME or ~/.everstep)")
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=_port, help="port to listen on (default: the last one, else a free one)")
    parser.add_argument("--tls", action="store_true", help="TLS with a certificate of its own making")
    parser.add_argument("--tls-cert", help="certificate chain, PEM")
    parser.add_argument("--tls-key", help="its key, PEM")
    parser.add_argument("--insecure", action="store_true", help="listen beyond loopback without TLS")
    parser.add_argument("--advertise", metavar="URL", help="base URL that machines are told to call")
    parser.add_argument("--store", metavar="URL", help="the journal (default: SQLite in the folder)")
    parser.add_argument("--backup", metavar="URL", help="keep backups in this folder or bucket (file:///, s3://, ...)")
    parser.add_argument("--cloud", metavar="FILE", help="what the cloud in a box offers")
    parser.add_argument("--log-file", metavar="FILE", help="write the log there instead of to standard error")
    parser.add_argument("--verbose", action="store_true", help="log more")
    return parser


def _port(text: str) -> int | None:
    number = int(text)
    if not 0 <= number < 65_536:
        raise argparse.ArgumentTypeError("expected a port from 0 to 65535")
    return number or None
