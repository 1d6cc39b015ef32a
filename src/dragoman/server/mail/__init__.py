"""Mail over HTTP, under ``/api/v1/mail``: sending, inboxes with leases, streams of what arrives, dead letters, graphs.

The one rule: every route asks ``team_mail(request)``, which knows the caller's team and no other.
"""

from dragoman.server.mail import letters, looking, mailboxes, stream

ENDPOINTS = (*letters.ENDPOINTS, *mailboxes.ENDPOINTS, *stream.ENDPOINTS, *looking.ENDPOINTS)
