"""`callboard.client`: the verbs of a runtime in another process, over its HTTP interface.

| file | what is there |
| --- | --- |
| `client.py` | `Client`, which has the verbs of `Runtime` |
| `core.py` | connections and streams, for the client itself and its handles |
| `handles.py` | jobs and their tasks |
| `entities.py` | workers, breakers and machines, by their names |
| `references.py` | references by which people fire events, except for machines |
| `stream.py` | the event stream, which is opened again if it was cut off |
| `link.py` | requests, which are repeated until the server answers |
| `server_errors.py` | the errors of failed answers |
| `views.py` | rebuilds records from views |
"""
