"""Nodes of a Ray cluster on this computer."""

from contextlib import contextmanager

import pytest
from processes import wait_for

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'anocaps[ray]'")
Node = pytest.importorskip("ray._private.node").Node
RayParams = pytest.importorskip("ray._private.parameter").RayParams


@contextmanager
def second_node(address, **resources):
    """Another node of the cluster, with these resources or one CPU."""
    settings = RayParams(
        gcs_address=address,
        node_ip_address="127.0.0.1",
        object_store_memory=80 * 2**20,
        **(resources or {"num_cpus": 1}),
    )
    node = Node(settings, head=False, shutdown_at_exit=False, spawn_reaper=False)

    def alive():
        return node.node_id in {each["NodeID"] for each in ray.nodes() if each["Alive"]}

    try:
        wait_for(alive)
        yield node
    finally:
        killed = node.dead_processes()
        node.kill_all_processes(check_alive=False, allow_graceful=True)
        wait_for(lambda: killed or not alive())  # it signs off


@contextmanager
def first_node_busy():
    """Keep tasks from the first node."""
    taken = ray.util.placement_group([{"CPU": 2}])
    try:
        assert taken.wait(120)
        yield
    finally:
        ray.util.remove_placement_group(taken)
