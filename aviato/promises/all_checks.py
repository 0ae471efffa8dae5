"""All checks, for pytest to collect."""

from aviato.promises.belongings import *
from aviato.promises.bounds import *
from aviato.promises.commands import *
from aviato.promises.coroutines import *
from aviato.promises.files import *
from aviato.promises.images import *
from aviato.promises.isolation import *
from aviato.promises.lives import *
from aviato.promises.network import *
from aviato.promises.refusals import *
from aviato.promises.remains import *
from aviato.promises.renewal import *
from aviato.promises.restarts import *
from aviato.promises.streams import *
from aviato.promises.terminals import *
from aviato.promises.verdicts import *
