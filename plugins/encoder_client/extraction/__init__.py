"""The methods of ``gliner2.GLiNER2``: schemas, requests, and answers in the library's shapes. Pure."""
