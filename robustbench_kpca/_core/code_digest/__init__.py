"""The digest of the code behind a name: of its file, and of the files that this imports from its own folder.

Comments, docstrings and layout do not change it. It is of the code as it was loaded: a file that is edited later in the
same program counts only when it is imported again. What code imports by a computed name, and files that it reads, are
not in it.
"""

from robustbench_kpca._core.code_digest.files import is_installed as is_installed
from robustbench_kpca._core.code_digest.files import of_file as of_file
from robustbench_kpca._core.code_digest.files import of_own as of_own
from robustbench_kpca._core.code_digest.objects import is_foreign as is_foreign
from robustbench_kpca._core.code_digest.objects import of_object as of_object
