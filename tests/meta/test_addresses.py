import pytest

from informers.meta.addresses import Address, parse_address
from informers.meta.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (":8080", Address("", 8080)),
        (":0", Address("", 0)),
        ("127.0.0.1:1", Address("127.0.0.1", 1)),
        ("localhost:65535", Address("localhost", 65535)),
        ("[::1]:8080", Address("::1", 8080)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, want: Address) -> None:
    assert parse_address(text) == want
    assert parse_address(str(want)) == want


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8080",
        "localhost",
        "localhost:",
        ":http",
        ":-1",
        ":65536",
        ":٣",
        "::1:8080",
        "a b:1",
        "http://a:80",
        "a/b:1",
        "[::1]",
        "[]:80",
        "[a]b:1",
        "user@host:1",
        "[127.0.0.1:80",
        "\x00:1",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="want HOST:PORT or :PORT"):
        parse_address(text)
