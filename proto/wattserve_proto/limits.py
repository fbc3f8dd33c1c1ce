"""What both ends of the protocol must agree on beside its messages."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""What a client sends and takes at the most. A server takes less unless it is told otherwise."""


def message_sizes(received: int = MAX_MESSAGE_BYTES, sent: int = MAX_MESSAGE_BYTES) -> list[tuple[str, int]]:
    """gRPC's options, of a channel or of a server, for messages up to so many bytes; -1: of any size."""
    return [("grpc.max_receive_message_length", received), ("grpc.max_send_message_length", sent)]
