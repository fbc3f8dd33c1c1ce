"""What both ends of the protocol must agree on beside its messages."""

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""In both directions, and the same for every model: 64 MiB hold 111 images of 3 x 224 x 224, or texts far
beyond the limits on them."""


def message_sizes(limit: int = MAX_MESSAGE_BYTES) -> list[tuple[str, int]]:
    """gRPC's options, of a channel or of a server, for messages up to `limit` bytes; -1: of any size."""
    return [("grpc.max_send_message_length", limit), ("grpc.max_receive_message_length", limit)]
