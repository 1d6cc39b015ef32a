"""Mail over HTTP, under ``/api/v1/mail``: letters, mailboxes with leases, streams, dead letters and evaluations.

Invariant: every handler uses ``team_mail(request)``, which is limited to the team of the caller.
"""

from dragoman.server.mail import letters, mailboxes, stream

ENDPOINTS = (*letters.ENDPOINTS, *mailboxes.ENDPOINTS, *stream.ENDPOINTS)
