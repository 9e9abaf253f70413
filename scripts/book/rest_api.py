"""Makes the reference of the REST API from the controller's OpenAPI document and its routes' sources.

The document does not say which role a request takes. A route says so by its arguments: `_: Operator` refuses whoever
may do less, `Result<Operator, Problem>` does so for a part of what may be asked. A route of the document that no
source has is an error, and so the page is never older than the routes.
"""

import json
import re

METHODS = ["get", "post", "put", "delete", "patch"]
ROLES = ["Viewer", "Operator", "Admin"]
# What every request of a kind may be answered with is said once.
REFUSALS_MIN = 0.9


def reference(controller):
    """The page's text. `controller`: the folder of the crate."""
    document = json.loads((controller / "openapi.json").read_text())
    roles = roles_of(controller)
    requests = [(method, path, request) for path, of in document["paths"].items()
                for method, request in of.items() if method in METHODS]
    common = common_refusals(requests)
    out = [f"\nVersion {document['info']['version']}. {document['info']['description']}\n",
           "## Answers that many have\n"]
    out += ["What is not listed at a request: each may be answered with these. The body is "
            f"{link('ProblemDetails')}.\n", "| status | what it means | of requests that |", "|---|---|---|"]
    out += [f"| {status} | {cell(what)} | {'change' if only_writes else 'read or change'} |"
            for status, (what, only_writes) in sorted(common.items())]
    out.append("")
    for tag in document["tags"]:
        mine = [of for of in requests if tag["name"] in of[2].get("tags", [])]
        out.append(f"## {tag['name'].replace('vms', 'VMs').capitalize().replace('Vms', 'VMs')}\n")
        out.append(f"{tag['description']}.\n")
        out += ["| request | |", "|---|---|"]
        out += [f"| [`{method.upper()} {path}`](#{anchor(request)}) | {cell(request['summary'])} |"
                for method, path, request in mine]
        out.append("")
        for method, path, request in mine:
            out += one(method, path, request, roles, common, document)
    left = [of[2]["operationId"] for of in requests
            if not {tag["name"] for tag in document["tags"]} & set(of[2].get("tags", []))]
    if left:
        raise SystemExit(f"rest_api.py: no tag of the document has {', '.join(left)}")
    out.append("## Shapes {#shapes}\n")
    for name, schema in sorted(document["components"]["schemas"].items(), key=lambda of: of[0].lower()):
        out += shape(name, schema)
    return "\n".join(out) + "\n"


def roles_of(controller):
    """The roles of each route: (that each caller has to have, those that a part of the requests takes)."""
    found = {}
    for file in sorted((controller / "src/http").glob("*.rs")):
        for name, arguments in re.findall(r"async fn (\w+)\((.*?)\)\s*->", file.read_text(), re.S):
            always = [role for role in ROLES if re.search(rf":\s*{role}\b", arguments)]
            partly = [role for role in ROLES if re.search(rf"Result<{role}\b", arguments)]
            if always or partly:
                found[name] = (always, partly)
    return found


def role(request, roles, document):
    name = request["operationId"]
    if request.get("security") == [{}]:
        return "none; no token is asked for"
    if name not in roles:
        raise SystemExit(f"rest_api.py: no source below src/http says which role {name} takes")
    always, partly = roles[name]
    if not partly:
        return f"`{always[-1].lower()}`"
    more = " or ".join(f"`{role.lower()}`" for role in partly) + (", as described" if len(partly) > 1 else "")
    # Who may only look may have it said what would be done, where a request can ask for that.
    return f"{more}; `{always[-1].lower()}` to have it said only" if looks(request, document) else more


def looks(request, document):
    """Whether a request can ask for what would be done, without doing it."""
    content = request.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    names = re.findall(r"#/components/schemas/(\w+)", json.dumps(content))
    return any({"dry_run", "apply"} & set(document["components"]["schemas"][name].get("properties", {}))
               for name in names)


def common_refusals(requests):
    """What nearly all requests, or nearly all that change something, may be refused with: by its status."""
    found = {}
    for wanted, only_writes in ((lambda _: True, False), (lambda method: method != "get", True)):
        of = [request for method, _, request in requests if wanted(method)]
        texts = [(status, answer["description"]) for request in of for status, answer in request["responses"].items()
                 if status >= "300"]
        for status, what in dict.fromkeys(texts):
            if status not in found and texts.count((status, what)) >= REFUSALS_MIN * len(of):
                found[status] = (what, only_writes)
    return found


def one(method, path, request, roles, common, document):
    out = [f"### {request['summary']} {{#{anchor(request)}}}\n", f"`{method.upper()} {path}`\n"]
    if request.get("description"):
        out.append(f"{request['description']}\n")
    out.append(f"Role: {role(request, roles, document)}.\n")
    if request.get("parameters"):
        out += ["| parameter | in | what |", "|---|---|---|"]
        for of in request["parameters"]:
            needed = "" if of.get("required") else ", if wanted"
            out.append(f"| `{of['name']}` | {of['in']}{needed} | "
                       f"{cell(sentence(of.get('description', '')) + bounds(of['schema']))} |")
        out.append("")
    body = request.get("requestBody")
    if body:
        kinds = [f"{kind(of['schema'])} as `{name}`" for name, of in body["content"].items()]
        out.append(f"Body{'' if body.get('required') else ', if wanted'}: {', '.join(kinds)}.\n")
    out += ["| answer | what | body |", "|---|---|---|"]
    for status, answer in request["responses"].items():
        if common.get(status, ("",))[0] != answer["description"]:
            shapes = [f"{kind(of['schema'])} as `{name}`" if name != "application/json" else kind(of["schema"])
                      for name, of in answer.get("content", {}).items() if of.get("schema")]
            headers = "".join(f"; header `{name}`" for name in answer.get("headers", {}))
            out.append(f"| {status} | {cell(answer['description'])}{headers} | {', '.join(shapes) or '-'} |")
    out.append("")
    return out


def shape(name, schema):
    out = [f"### {name} {{#shape-{name.lower()}}}\n"]
    if schema.get("description"):
        out.append(f"{schema['description']}\n")
    if "enum" in schema:
        out.append("One of " + ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"]) + ".\n")
    elif "oneOf" in schema:
        out += ["| one of | what |", "|---|---|"]
        out += [f"| {kind(of)} | {cell(of.get('description', ''))} |" for of in schema["oneOf"]]
        out.append("")
        for of in schema["oneOf"]:
            if of.get("properties"):
                out += fields(of, f"{tagged(of)}: ")
    elif "allOf" in schema:
        out.append("All that these have:\n")
        for of in schema["allOf"]:
            out += fields(of, "") if of.get("properties") else [f"- {kind(of)}\n"]
    elif schema.get("properties"):
        out += fields(schema, "")
    else:
        out.append(f"{kind(schema)}{bounds(schema)}\n")
    return out


def fields(schema, title):
    out = [f"{title}\n"] if title else []
    out += ["| field | type | what |", "|---|---|---|"]
    required = schema.get("required", [])
    for name, of in schema.get("properties", {}).items():
        what = of.get("description") or next((part["description"] for part in of.get("oneOf", [])
                                              if part.get("description")), "")
        needed = "" if name in required else ", may be missing"
        out.append(f"| `{name}` | {kind(of)}{needed} | {cell(what + bounds(of))} |")
    out.append("")
    return out


def tagged(schema):
    """What a variant is known by: the one value of a field, or its only field."""
    known = [f"`{name}` is `{json.dumps(of['enum'][0])}`" for name, of in schema["properties"].items()
             if len(of.get("enum", [])) == 1]
    return "With " + (known[0] if known else ", ".join(f"`{name}`" for name in schema["properties"]))


def kind(schema):
    if "$ref" in schema:
        return link(schema["$ref"].rsplit("/", 1)[1])
    for of in ("oneOf", "anyOf", "allOf"):
        if of in schema:
            parts = [kind(part) for part in schema[of]]
            return (" or " if of != "allOf" else " with ").join(dict.fromkeys(parts))
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if isinstance(schema.get("type"), list):
        return " or ".join(kind({**schema, "type": of}) for of in schema["type"])
    if schema.get("type") == "array":
        return f"list of {kind(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object, each value {kind(schema['additionalProperties'])}"
    if schema.get("type") == "object" and schema.get("properties"):
        return "object with " + ", ".join(f"`{name}`" for name in schema["properties"])
    return schema.get("type", "anything")


def bounds(schema):
    said = []
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        said.append(f"{least:,} to {most:,}")
    elif most is not None:
        said.append(f"at most {most:,}")
    elif least:
        said.append(f"at least {least:,}")
    if "pattern" in schema:
        said.append(f"as `{schema['pattern']}`")
    if schema.get("default") is not None:
        said.append(f"`{json.dumps(schema['default'])}` if not given")
    text = "; ".join(said)
    return f" {text[0].upper()}{text[1:]}." if said else ""


def link(name):
    return f"[{name}](#shape-{name.lower()})"


def anchor(request):
    return request["operationId"].replace("_", "-")


def sentence(text):
    return text if not text or text.endswith(".") else f"{text}."


def cell(text):
    """Text for a cell of a table, in words of JSON and not of Rust."""
    text = re.sub(r"\[`(\w+)`\](?!\()", r"`\1`", text.strip()).replace("`None`", "`null`")
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|")
