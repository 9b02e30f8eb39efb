"""Tasks in Chromium, on a site that is served inside the desktop and writes down what it is asked for."""

import random
from html import escape

from flywheel.packs.draft import HOME, Draft, Json, click, infeasible, press, prints, write
from flywheel.packs.words import COLOURS, NAMES, PLACES, THINGS, some

_SITE, _LOG, _PORT = f"{HOME}/site", f"{HOME}/site.log", 8000
_SERVER = ("bash", "-c", f"cd {_SITE} && exec python3 -m http.server {_PORT} --bind 127.0.0.1 2> {_LOG}")
_STYLE = "body { font: 18px sans-serif; margin: 12px } input, button, select { font: inherit; margin: 3px }"


def _page(title: str, body: str) -> str:
    return f"<!DOCTYPE html><html><head><title>{title}</title><style>{_STYLE}</style></head><body>{body}</body></html>"


def _site(instruction: str, body: str, judge: Json, solution: list[Json], title: str = "Order") -> Draft:
    files = {
        f"{_SITE}/index.html": _page(title, f"<h2>{title}</h2>{body}"),
        f"{_SITE}/thanks.html": _page("Thanks", "<h2>Thank you</h2>"),
        f"{_SITE}/favicon.ico": "",
    }
    launch = ("google-chrome", f"http://localhost:{_PORT}/index.html")
    return Draft(instruction, judge, solution, launch, title, files, _SERVER)


def _sent(query: str) -> Json:
    """The last form that was sent."""
    return prints(f"grep -o 'thanks.html?[^ ]*' {_LOG} | tail -n 1", f"thanks.html?{query}")


def _form(fields: str) -> str:
    return f'<form action="thanks.html">{fields}<p><button>Send</button></p></form>'


def press_button(rng: random.Random) -> Draft:
    """One of several."""
    names = some(rng, COLOURS, 4)
    wanted = rng.choice(names)
    buttons = "".join(f'<p><button name="colour" value="{name}">{name.capitalize()}</button></p>' for name in names)
    return _site(
        f"Press the button {wanted.capitalize()} on the page.",
        f'<form action="thanks.html">{buttons}</form>',
        _sent(f"colour={wanted}"),
        [click(wanted.capitalize(), "push-button")],
        "Colours",
    )


def fill_form(rng: random.Random) -> Draft:
    """A field and a button."""
    name = rng.choice(NAMES)
    return _site(
        f"Type {name} into the field Name and press Send.",
        _form('<label>Name <input name="name"></label>'),
        _sent(f"name={name}"),
        [click("Name", "entry"), write(name), click("Send", "push-button")],
    )


def order(rng: random.Random) -> Draft:
    """Two fields and a box."""
    name, thing, gift = rng.choice(NAMES), rng.choice(THINGS), rng.random() < 0.5
    box = [press("tab", to="go to the box"), press("space", to="tick it")] if gift else []
    return _site(
        f"Order a {thing} for {name}{' as a gift' if gift else ', not as a gift'}: fill the form and press Send.",
        _form(
            '<p><label>Name <input name="name"></label></p><p><label>Thing <input name="thing"></label></p>'
            '<p><label><input type="checkbox" name="gift" value="yes"> Gift</label></p>'
        ),
        _sent(f"name={name}&thing={thing}{'&gift=yes' if gift else ''}"),
        [
            click("Name", "entry"),
            write(name),
            press("tab", to="go to the next field"),
            write(thing),
            *box,
            click("Send", "push-button"),
        ],
    )


def bookmark(rng: random.Random) -> Draft:
    """The page that is open, kept in the bookmarks bar or wherever the browser puts it."""
    title = rng.choice(PLACES).capitalize()
    script = f'grep -c \'"url": "http://localhost:{_PORT}/index.html"\' {HOME}/.config/google-chrome/Default/Bookmarks'
    return _site(
        f"Bookmark this page, {title}.",
        f"<p>All about the {escape(title.lower())}.</p>",
        prints(script, "1"),
        [press("ctrl", "d", to="bookmark the page"), click("Done", "push-button")],
        title,
    )


def look_up(rng: random.Random) -> Draft:
    """A value found in a table goes into a form."""
    names, things = some(rng, NAMES, 5), some(rng, THINGS, 5)
    prices = rng.sample(range(10, 99), 5)
    order = sorted(range(5), key=lambda i: -prices[i])
    wanted = names[order[0]]
    rows = "".join(
        f"<tr><td>{n}</td><td>{t}</td><td>{p}</td></tr>" for n, t, p in zip(names, things, prices, strict=True)
    )
    return _site(
        "Type the name of whoever sells the most expensive thing into the field Seller and press Send.",
        f"<table><tr><th>Seller</th><th>Thing</th><th>Price</th></tr>{rows}</table>"
        + _form('<label>Seller <input name="seller"></label>'),
        _sent(f"seller={wanted}"),
        [click("Seller", "entry"), write(wanted), click("Send", "push-button")],
        "Prices",
    )


def missing_button(rng: random.Random) -> Draft:
    """No button says that."""
    *names, absent = some(rng, COLOURS, 4)
    buttons = "".join(f'<p><button name="colour" value="{name}">{name.capitalize()}</button></p>' for name in names)
    return _site(
        f"Press the button {absent.capitalize()} on the page.",
        f'<form action="thanks.html">{buttons}</form>',
        infeasible(),
        [press("end", to="look at the end of the page")],
        "Colours",
    )
