"""The tests of kazoo that pass on real servers and cannot pass on the test server, each with the reason.

The list is exact: a test on it that passes on the test server fails the run just as one that is missing here.
"""

from __future__ import annotations

from types import MappingProxyType

ONE_SERVER = "stops some of several servers, and the test server is one"
RECONFIG = "changes the members of an ensemble, and the test server is one server"
SASL = "the test server knows no SASL"
TLS = "the test server knows no TLS"

CLIENT = "kazoo/tests/test_client.py::"
SASL_TESTS = "kazoo/tests/test_sasl.py::"

REASONS = MappingProxyType(
    {
        f"{CLIENT}TestClient::test_update_host_list": ONE_SERVER,
        f"{CLIENT}TestReconfig::test_add_remove_observer": RECONFIG,
        f"{CLIENT}TestReconfig::test_bad_input": RECONFIG,
        f"{CLIENT}TestReconfig::test_no_super_auth": RECONFIG,
        f"{CLIENT}TestSSLClient::test_create": TLS,
        "kazoo/tests/test_connection.py::TestReadOnlyMode::test_read_only": ONE_SERVER,
        "kazoo/tests/test_eventlet_handler.py::TestEventletClient::test_update_host_list": ONE_SERVER,
        "kazoo/tests/test_gevent_handler.py::TestGeventClient::test_update_host_list": ONE_SERVER,
        f"{SASL_TESTS}TestLegacySASLDigestAuthentication::test_connect_sasl_auth": SASL,
        f"{SASL_TESTS}TestLegacySASLDigestAuthentication::test_invalid_sasl_auth": SASL,
        f"{SASL_TESTS}TestSASLDigestAuthentication::test_connect_sasl_auth": SASL,
        f"{SASL_TESTS}TestSASLDigestAuthentication::test_invalid_sasl_auth": SASL,
    }
)
