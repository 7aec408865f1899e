"""What a job can be made from: the recipes, and whether a target is one that is supported."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from api.auth import JobsRead
from api.estimate import hub_of
from api.problems import responses
from api.query import no_others
from api.schemas import RecipeList, RecipeView, Support
from api.state import StateDep
from eagle3.config import TargetRef, load_recipe, recipe_names
from eagle3.plan import TargetShape, UnknownShape, Unreachable, read_config

router = APIRouter(prefix="/v1", tags=["catalogue"], dependencies=[Depends(no_others)])

Part = Annotated[str, Path(max_length=96, pattern=r"^[A-Za-z0-9][\w.-]*$")]


@router.get(
    "/recipes", operation_id="listRecipes", summary="Recipes by name", responses=responses()
)
def list_recipes(caller: JobsRead) -> RecipeList:
    found = ((name, load_recipe(name)) for name in recipe_names())
    return RecipeList(
        data=[
            RecipeView(name=name, recipe=recipe.model_dump(mode="json")) for name, recipe in found
        ]
    )


@router.get(
    "/targets/{organisation}/{name}:supported",
    operation_id="checkTarget",
    summary="Whether a hub model can be a target",
    description="Asked of its `config.json`; `supported` is empty where that cannot be read.",
    responses=responses(),
)
def check_target(
    organisation: Part,
    name: Part,
    state: StateDep,
    caller: JobsRead,
    revision: Annotated[str | None, Query(max_length=256, pattern=r"^[\w./-]+$")] = None,
) -> Support:
    ref = TargetRef(kind="hub", location=f"{organisation}/{name}", revision=revision)
    try:
        shape = TargetShape.from_config(read_config(ref, hub_of(state.settings)))
    except Unreachable as error:
        return Support(target=str(ref), supported=None, reason=str(error))
    except UnknownShape as error:
        return Support(target=str(ref), supported=False, reason=str(error))
    return Support(target=str(ref), supported=True, shape=shape)
