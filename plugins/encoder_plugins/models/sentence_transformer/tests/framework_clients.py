# /// script
# requires-python = ">=3.11"
# dependencies = ["haystack-ai==2.*", "langchain-cohere>=0.4.6", "langchain-openai>=1", "llama-index-embeddings-openai-like>=0.4"]
# ///
"""Components of LangChain, LlamaIndex and Haystack that take a base URL, against a server; they run in an environment of their own.

langchain-cohere pins another cohere than the tests' own. ``framework_clients.py.lock``, written by `uv lock --script`, has the versions.
"""

from __future__ import annotations

import json
import sys

from haystack import Document as HaystackDocument
from haystack.components.embedders import OpenAIDocumentEmbedder
from haystack.utils import Secret
from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_openai import OpenAIEmbeddings
from llama_index.embeddings.openai_like import OpenAILikeEmbedding


def main(url: str, query: str, texts: list[str]) -> dict[str, object]:
    """Return what each component makes of the texts."""
    embeddings = OpenAIEmbeddings(
        model="minilm", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    reranker = CohereRerank(model="minilm", cohere_api_key="none", base_url=url, top_n=2)
    embedder = OpenAIDocumentEmbedder(
        model="minilm", api_base_url=f"{url}/v1", api_key=Secret.from_token("none"), progress_bar=False
    )
    llama = OpenAILikeEmbedding(model_name="minilm", api_base=f"{url}/v1", api_key="none")
    ranked = reranker.compress_documents([Document(page_content=text) for text in texts], query)
    written = embedder.run([HaystackDocument(content=text) for text in texts])["documents"]
    return {
        "langchain_embeddings": embeddings.embed_documents(texts),
        "langchain_reranked": [(found.page_content, found.metadata["relevance_score"]) for found in ranked],
        "llama_index_embeddings": llama.get_text_embedding_batch(texts),
        "haystack_embeddings": [document.embedding for document in written],
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3:])))
