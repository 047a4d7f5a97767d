"""How jobs are submitted: by the application, and by bodies for their own job, in any process.

An id that is taken, and whether the workstream is the same one, is judged here. What a job then does is the actors'
part (`actors/jobs/`).
"""
