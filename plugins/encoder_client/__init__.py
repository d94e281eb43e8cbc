"""Calls encoder servers by the methods of the libraries whose models they serve: a user of one changes the line that loads the model.

    from encoder_client import GLiNER

    model = GLiNER("http://ner.demo.svc")
    model.predict_entities("Tim Cook leads Apple in Cupertino.", ["company", "city"])

Needs httpx and numpy, tqdm for progress bars, and nothing of the server's packages. A further family is a module that plans its calls
(``entities``, ``label_vectors``, ``extraction``, ``embeddings``, ``rows``) and a pair of classes in ``models``.
"""

from encoder_client.documents import Pdf
from encoder_client.errors import (
    ArgumentError,
    AuthenticationError,
    BusyError,
    ConnectionFailedError,
    EncoderClientError,
    InvalidAnswerError,
    InvalidRequestError,
    NotServedError,
    RequestTimeoutError,
    ServerError,
    TruncationWarning,
)
from encoder_client.extraction.schema import AttributeGroup, RegexValidator, Schema
from encoder_client.label_vectors import LabelVectors
from encoder_client.models import (
    AsyncGLiNER,
    AsyncGLiNER2,
    AsyncMultiVectorEncoder,
    AsyncSentenceTransformer,
    GLiNER,
    GLiNER2,
    MultiVectorEncoder,
    SentenceTransformer,
)

__all__ = [
    "ArgumentError",
    "AsyncGLiNER",
    "AsyncGLiNER2",
    "AsyncMultiVectorEncoder",
    "AsyncSentenceTransformer",
    "AttributeGroup",
    "AuthenticationError",
    "BusyError",
    "ConnectionFailedError",
    "EncoderClientError",
    "GLiNER",
    "GLiNER2",
    "InvalidAnswerError",
    "InvalidRequestError",
    "LabelVectors",
    "MultiVectorEncoder",
    "NotServedError",
    "Pdf",
    "RegexValidator",
    "RequestTimeoutError",
    "Schema",
    "SentenceTransformer",
    "ServerError",
    "TruncationWarning",
]
