"""InitProducerId: an id for an idempotent producer.

Versions: 0-5. Behaviour: a producer without a transactional id gets a fresh id and epoch 0, also
when it names an id that it has. A transactional id is refused: there are no transactions yet.
"""

from chronik.protocol.errors import ErrorCode, KafkaError
from chronik.protocol.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse
from chronik.server.context import Context


async def init_producer_id(
    context: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
    try:
        producer_id = await context.node.producer_ids.next()
    except KafkaError as error:
        return InitProducerIdResponse(error_code=error.code, producer_epoch=-1)
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
    )
