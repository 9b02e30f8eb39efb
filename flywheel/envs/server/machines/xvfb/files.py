"""What the sandbox finds in /etc and in its home folder: made for it, nothing of the host's own."""

from pathlib import Path

from flywheel.envs.server.machines.xvfb.openers import opener_files

HOSTNAME = "user-virtual-machine"
"""As in OSWorld's image."""

ETC = (
    # Of the host's /etc only what programs need in order to run; nothing in these says anything about the host.
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "os-release"),
    *("debian_version", "mime.types", "mailcap", "magic", "terminfo", "protocols", "services", "shells", "inputrc"),
    *("fonts", "X11", "gtk-2.0", "gtk-3.0", "xdg", "dconf", "glvnd", "vulkan", "openal", "pulse", "papersize"),
    # Not Chromium's: Debian's initial preferences (no safe browsing, no autofill) answer tasks before the agent does.
    *("libreoffice", "gimp", "thunderbird", "firefox-esr", "vlc"),
    *("dictionaries-common", "python3", "python3.11", "python3.12", "python3.13", "perl", "ghostscript"),
    *("ssl/certs", "ca-certificates.conf", "bash.bashrc", "profile", "skel", "dbus-1", "locale.alias"),
)

VAR = (
    # Caches and registries that Debian keeps under /var and links to from /usr.
    *("cache/fontconfig", "lib/libreoffice", "lib/xkb", "lib/dictionaries-common", "lib/aspell", "lib/xml-core"),
    *("lib/ghostscript", "lib/openbox"),
)

GENERATED = {
    "passwd": "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
    "user:x:1000:1000:user:/home/user:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hostname": f"{HOSTNAME}\n",
    "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
    # A constant: applications only want one, and the host's own identifies the host.
    "machine-id": "b08dfa6083e7567a1921a715000001fb\n",
}

_OPENBOX_MENU = """<?xml version="1.0" encoding="UTF-8"?>
<openbox_menu xmlns="http://openbox.org/3.4/menu">
<menu id="root-menu" label="Applications">
{items}
</menu>
</openbox_menu>
"""
_ITEM = '<item label="{label}"><action name="Execute"><command>{command}</command></action></item>'

MENU = (
    # label, command, the file that must exist
    ("Files", "nautilus", "/usr/bin/pcmanfm"),
    ("Text Editor", "gedit", "/usr/bin/mousepad"),
    ("Terminal", "gnome-terminal", "/usr/bin/xterm"),
    ("Web Browser", "google-chrome", "/usr/bin/chromium"),
    ("Spreadsheet", "libreoffice --calc", "/usr/lib/libreoffice/program/libsclo.so"),
    ("Text Document", "libreoffice --writer", "/usr/lib/libreoffice/program/libswlo.so"),
    ("Presentation", "libreoffice --impress", "/usr/lib/libreoffice/program/libsdlo.so"),
    ("Image Editor", "gimp", "/usr/bin/gimp"),
    ("Media Player", "vlc", "/usr/bin/vlc"),
    ("Mail", "thunderbird", "/usr/bin/thunderbird"),
)

# One desktop instead of four (a wheel turned over the background would switch), new windows take the focus.
_OPENBOX_RC = """<?xml version="1.0" encoding="UTF-8"?>
<openbox_config xmlns="http://openbox.org/3.4/rc">
<focus><focusNew>yes</focusNew><followMouse>no</followMouse></focus>
<placement><policy>Smart</policy><center>yes</center></placement>
<theme><name>Clearlooks</name><titleLayout>NLIMC</titleLayout><animateIconify>no</animateIconify></theme>
<desktops><number>1</number><popupTime>0</popupTime></desktops>
<keyboard>
  <keybind key="A-F4"><action name="Close"/></keybind>
  <keybind key="A-Tab"><action name="NextWindow"><finalactions><action name="Focus"/><action name="Raise"/>
    <action name="Unshade"/></finalactions></action></keybind>
  <keybind key="W-Up"><action name="ToggleMaximize"/></keybind>
  <keybind key="C-A-t"><action name="Execute"><command>gnome-terminal</command></action></keybind>
</keyboard>
<mouse>
  <context name="Titlebar">
    <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    <mousebind button="Left" action="Drag"><action name="Move"/></mousebind>
    <mousebind button="Left" action="DoubleClick"><action name="ToggleMaximize"/></mousebind>
  </context>
  {edges}
  <context name="Client">
    <mousebind button="Left" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    <mousebind button="Middle" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
    <mousebind button="Right" action="Press"><action name="Focus"/><action name="Raise"/></mousebind>
  </context>
  <context name="Close"><mousebind button="Left" action="Click"><action name="Close"/></mousebind></context>
  <context name="Iconify"><mousebind button="Left" action="Click"><action name="Iconify"/></mousebind></context>
  <context name="Maximize"><mousebind button="Left" action="Click"><action name="ToggleMaximize"/></mousebind></context>
  <context name="Root">
    <mousebind button="Right" action="Press"><action name="ShowMenu"><menu>root-menu</menu></action></mousebind>
    <mousebind button="Middle" action="Press">
      <action name="ShowMenu"><menu>client-list-combined-menu</menu></action></mousebind>
  </context>
</mouse>
<menu><file>menu.xml</file><hideDelay>200</hideDelay><submenuShowDelay>0</submenuShowDelay></menu>
</openbox_config>
"""
_EDGE = (
    '<context name="{name}"><mousebind button="Left" action="Drag"><action name="Resize"><edge>{edge}</edge></action>'
    "</mousebind></context>"
)
_EDGES = {
    "Top": "top",
    "Bottom": "bottom",
    "Left": "left",
    "Right": "right",
    "TLCorner": "topleft",
    "TRCorner": "topright",
    "BLCorner": "bottomleft",
    "BRCorner": "bottomright",
}

_OFFICE = (
    # First-run dialogs, tips and donation bars that would cover the document of every fresh home.
    ("/org.openoffice.Office.Common/Misc", "FirstRun", "false"),
    ("/org.openoffice.Office.Common/Misc", "ShowTipOfTheDay", "false"),
    ("/org.openoffice.Office.Common/Misc", "CrashReport", "false"),
    # Checkers save .xlsx and .docx with ctrl+s; the question whether to keep the format would stop them.
    ("/org.openoffice.Office.Common/Save/Document", "WarnAlienFormat", "false"),
    ("/org.openoffice.Setup/Product", "ooSetupLastVersion", "99.9"),
    ("/org.openoffice.Setup/Product", "WhatsNew", "false"),
    ("/org.openoffice.Setup/Product", "LastTimeGetInvolvedShown", "4102444800"),
    ("/org.openoffice.Setup/Product", "LastTimeDonateShown", "4102444800"),
)


def write_etc(folder: Path) -> None:
    """The generated part of /etc."""
    for name, text in GENERATED.items():
        (folder / name).write_text(text)


def write_home(folder: Path) -> None:
    """What a fresh home holds besides its empty folders."""
    config = folder / ".config"
    items = (_ITEM.format(label=label, command=command) for label, command, needs in MENU if Path(needs).exists())
    edges = "\n  ".join(_EDGE.format(name=name, edge=edge) for name, edge in _EDGES.items())
    office = "".join(
        f'<item oor:path="{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop></item>'
        for path, name, value in _OFFICE
    )
    texts = {
        "openbox/menu.xml": _OPENBOX_MENU.format(items="\n".join(items)),
        "openbox/rc.xml": _OPENBOX_RC.replace("{edges}", edges),
        # Read by xterm, whose default font is a bitmap of 6 x 13 pixels.
        "../.Xdefaults": "XTerm*faceName: DejaVu Sans Mono\nXTerm*faceSize: 11\nXTerm*saveLines: 2000\n",
        "libreoffice/4/user/registrymodifications.xcu": '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema" '
        f'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">{office}</oor:items>\n',
    }
    texts |= {f"../{name}": text for name, text in opener_files(Path("/usr/lib/chromium/chromium").exists()).items()}
    for name, text in texts.items():
        (config / name).parent.mkdir(parents=True, exist_ok=True)
        (config / name).write_text(text)
