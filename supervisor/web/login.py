"""The login form: takes the token, gives a session."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from supervisor.web.access import Access
from supervisor.web.bodies import form_body
from supervisor.web.gate import NOT_OUR_PAGE, Visitor
from supervisor.web.problems import problem_response
from supervisor.web.rendering import TEMPLATES
from supervisor.web.sessions import COOKIE, SESSION_TTL, new_session


def login_routes(access: Access) -> list[Route]:
    async def form(request: Request) -> Response:
        return shown(request.query_params.get("next", "/"), access)

    async def login(request: Request) -> Response:
        fields = await form_body(request)
        target = own_path(fields.get("next", "/"))
        if access.token is None or not access.is_token(fields.get("token", "")):
            return shown(target, access, "That is not the token.", 403)
        response = RedirectResponse(target, 303)
        response.set_cookie(
            COOKIE,
            new_session(access.token, datetime.now(UTC)),
            max_age=round(SESSION_TTL.total_seconds()),
            httponly=True,
            samesite="strict",
            secure=request.scope["scheme"] == "https",
        )
        return response

    async def logout(request: Request) -> Response:
        visitor: Visitor = request.state.visitor
        if not visitor.is_our_form((await form_body(request)).get("form_token", "")):
            return problem_response(request, NOT_OUR_PAGE)
        response = RedirectResponse("/", 303)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return response

    return [
        Route("/login", form),
        Route("/login", login, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
    ]


def shown(target: str, access: Access, error: str = "", status: int = 200) -> Response:
    template = TEMPLATES.get_template("login.html")
    return HTMLResponse(template.render(next=own_path(target), error=error, access=access), status)


def own_path(target: str) -> str:
    """A path of this server; browsers read ``//host`` and ``/\\host`` as another one's."""
    is_ours = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_ours and target.isprintable() else "/"
