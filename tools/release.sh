#!/bin/sh
# usage: tools/release.sh TAG OWNER/NAME
# Prepares the checkout that a release is built from. The address of the repository is known to the workflow that
# publishes, and to no file: it is added to pyproject.toml, and to the links of the README, which PyPI shows alone.
set -eu
tag=$1
repository=https://github.com/$2

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/fakexport/_version.py)
if [ "$tag" != "v$version" ]; then
    echo "the tag is $tag, but src/fakexport/_version.py has $version" >&2
    exit 1
fi

cat >>pyproject.toml <<END

[project.urls]
Source = "$repository"
Documentation = "https://${2%/*}.github.io/${2#*/}/"
Changelog = "$repository/blob/$tag/CHANGELOG.md"
Issues = "$repository/issues"
END
sed -i -E -e "s,(!\[[^]]*\]\()([A-Za-z][^):]*\)),\1$repository/raw/$tag/\2,g" \
    -e "s,(\]\()([A-Za-z][^):]*\)),\1$repository/blob/$tag/\2,g" README.md
