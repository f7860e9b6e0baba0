"""A SuperLink as its nodes see it, in this process, that breaks wherever a test wants it to."""

import time
from types import SimpleNamespace

from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse, PushObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

NODE, RUN = 7, 3
CALLS = ("PullMessages", "PullObject", "PushMessages", "PushObject", "ConfirmMessageReceived")


class SuperLink:
    """The Fleet API for one node. Flower 1.41 delivers a message once, the nightly until it is confirmed.

    `broken` is (call, when, error): the next such call raises the error before or after it has been carried out.
    """

    def __init__(self, once=True):
        self.once, self.broken, self.activated = once, None, 0
        self.waiting, self.objects, self.replies = [], {}, []

    def send(self, content):
        """A message of the coordinator to the node."""
        about = Metadata(RUN, "", 1, NODE, "", "", time.time(), 3600.0, "train")
        message = make_message(about, content)
        self.objects |= {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        head = message_to_proto(make_message(about, type(content)()))
        head.metadata.message_id = message.object_id
        self.waiting.append((head, get_object_tree(message)))

    def received(self):
        """The contents of all replies that are complete, and they are forgotten."""
        found = []
        for head, tree in list(self.replies):
            parts = {each.object_id: self.objects.get(each.object_id) for each in iterate_object_tree(tree)}
            if all(parts.values()):
                assert message_from_proto(head).metadata.src_node_id == NODE
                found.append(inflate_object_from_contents(head.metadata.message_id, parts).content)
        self.replies.clear()
        return found

    def client(self, *_, **__):
        """What Flower's client of this SuperLink would be."""
        return SimpleNamespace(
            **{name: self._breaking(name) for name in ("ActivateNode", *CALLS)},
            close=lambda: None,
            SendNodeHeartbeat=lambda _: None,
            DeactivateNode=lambda _: None,
        )

    def _breaking(self, name):
        def call(request):
            if (name, "before") == (self.broken or ())[:2]:
                self._break()
            response = getattr(self, name)(request)
            if (name, "after") == (self.broken or ())[:2]:
                self._break()
            return response

        return call

    def _break(self):
        error, self.broken = self.broken[2], None
        raise error

    def ActivateNode(self, request):
        assert request.heartbeat_interval == 10
        self.activated += 1
        return ActivateNodeResponse(node_id=NODE)

    def PullMessages(self, request):
        assert request.node.node_id == NODE
        if not self.waiting:
            return PullMessagesResponse()
        head, tree = self.waiting.pop(0) if self.once else self.waiting[0]
        return PullMessagesResponse(messages_list=[head], message_object_trees=[tree])

    def PullObject(self, request):
        content = self.objects.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None, object_available=bool(content), object_content=content
        )

    def PushMessages(self, request):
        tree = request.message_object_trees[0]
        self.replies.append((request.messages_list[0], tree))
        missing = [each.object_id for each in iterate_object_tree(tree) if each.object_id not in self.objects]
        return PushMessagesResponse(objects_to_push=missing, session_id="a session")

    def PushObject(self, request):
        assert request.session_id == "a session"
        self.objects[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def ConfirmMessageReceived(self, request):
        self.waiting = [each for each in self.waiting if each[0].metadata.message_id != request.message_object_id]
        return ConfirmMessageReceivedResponse()
