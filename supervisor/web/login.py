"""The login form: takes the token, gives a session."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.web.access import Access
from supervisor.web.bodies import form_body
from supervisor.web.gate import Visitor
from supervisor.web.rendering import TEMPLATES, place_of
from supervisor.web.sessions import COOKIE, SESSION_TTL, new_session, root_of, split_root


def login_routes(access: Access) -> list[Route]:
    async def form(request: Request) -> Response:
        return shown(request, request.query_params.get("next", "/"), access)

    async def login(request: Request) -> Response:
        fields = await form_body(request)
        target = own_path(fields.get("next", "/"))
        if access.token is None or not access.is_token(fields.get("token", "")):
            return shown(request, target, access, "That is not the token.", 403)
        session = new_session(access.token, datetime.now(UTC))
        root = root_of(access.token, session)
        response = RedirectResponse(root + target, 303)
        response.set_cookie(
            COOKIE,
            session,
            max_age=round(SESSION_TTL.total_seconds()),
            path=root,
            httponly=True,
            samesite="strict",
            secure=is_encrypted(request),
        )
        return response

    async def logout(request: Request) -> Response:
        visitor: Visitor = request.state.visitor
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE, visitor.root, httponly=True, samesite="strict")
        return response

    return [
        Route("/login", form),
        Route("/login", login, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
    ]


def shown(
    request: Request, target: str, access: Access, error: str = "", status: int = 200
) -> Response:
    text = TEMPLATES.get_template("login.html").render(
        next=own_path(target), error=error, access=access, **place_of(request)
    )
    return HTMLResponse(text, status)


def is_encrypted(request: Request) -> bool:
    """Up to here, or up to a proxy: uvicorn believes those that FORWARDED_ALLOW_IPS names, and a
    browser says for itself what it sees.
    """
    origin = request.headers.get("origin", "")
    return request.scope["scheme"] == "https" or origin.startswith("https://")


def own_path(target: str) -> str:
    """A path of this server, without that of a session; browsers read ``//host`` and ``/\\host`` as
    another server's.
    """
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\"))
    if not is_ours or not target.isprintable():
        return "/"
    rest = split_root(target)[1]
    return rest if rest == target else own_path(rest)
