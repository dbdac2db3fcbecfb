"""The API: a request does not wait for the report, but gets the id of the run that makes it."""

from typing import Annotated

from fastapi import FastAPI, HTTPException, Path
from redis.exceptions import RedisError

import tasks
from supervisor import jobs

app = FastAPI(title="Reports")


# `def` and not `async def`: to trigger is a call to Redis, so FastAPI makes it in a thread.
@app.post("/reports/{city}", status_code=202)
def order_report(city: Annotated[str, Path(max_length=50)]) -> dict[str, str]:
    try:
        run = jobs.trigger("city-report", kwargs={"city": city}, app=tasks.app)
    except RedisError as error:
        raise HTTPException(503, "no report can be ordered at the moment") from error
    return {"run": run}


@app.get("/reports")
def schedule() -> dict[str, str]:
    """When the next report comes by itself."""
    return {"next": jobs.next_ticks("city-report", 1, app=tasks.app)[0].isoformat()}
