"""`callboard.client`: the verbs of a runtime that another process has, over its HTTP interface.

| file | what is there |
| --- | --- |
| `client.py` | `Client`: what stands in the place of `Runtime` |
| `handles.py` | jobs and their tasks |
| `named.py` | workers, breakers and machines, which are names |
| `references.py` | all but machines as actors, which take events |
| `stream.py` | the event stream: opened again where it was cut off |
| `link.py` | requests, asked again until they are answered |
| `trouble.py` | what an answer that is no success raises |
| `views.py` | what goes over the wire, as records |
"""
