"""Whether the application in front has handled what was sent to it, by the window manager's own question: a ping.

Source: EWMH, _NET_WM_PING. A client answers it in the order of its events, so what came before has been handled.
"""

import time
from typing import Any

from Xlib import X
from Xlib.error import XError
from Xlib.protocol import event


def wait_for_client(display: Any, most: float) -> bool:
    """False, at once, when the active window answers no pings; otherwise returns after its answer or `most` seconds."""
    root = display.screen().root
    protocols, ping = display.intern_atom("WM_PROTOCOLS"), display.intern_atom("_NET_WM_PING")
    active = root.get_full_property(display.intern_atom("_NET_ACTIVE_WINDOW"), X.AnyPropertyType)
    if active is None or not active.value or not active.value[0]:
        return False
    window = display.create_resource_object("window", active.value[0])
    try:
        known = window.get_full_property(protocols, X.AnyPropertyType)
    except XError:
        return False
    if known is None or ping not in known.value:
        return False
    stamp = int(time.monotonic() * 1000) & 0x7FFFFFFF
    root.change_attributes(event_mask=X.SubstructureNotifyMask)
    question = event.ClientMessage(window=window, client_type=protocols, data=(32, [ping, stamp, window.id, 0, 0]))
    window.send_event(question)
    display.sync()
    try:
        _await_answer(display, stamp, time.monotonic() + most)
    finally:
        root.change_attributes(event_mask=X.NoEventMask)
    return True


def _await_answer(display: Any, stamp: int, until: float) -> None:
    while time.monotonic() < until:
        while display.pending_events():
            told = display.next_event()
            if told.type == X.ClientMessage and told.data[0] == 32 and told.data[1][1] == stamp:
                return
        time.sleep(0.005)
