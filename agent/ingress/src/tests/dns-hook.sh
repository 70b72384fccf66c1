# Stands for a hook that sets DNS records: FOLDER is the zone, a file is a name, a line a value.
# usage: sh dns-hook.sh FOLDER present|cleanup NAME VALUE
set -eu
zone=$1 action=$2 name=$3 value=$4
echo "$action $name $value" >> "$zone/calls"
case $action in
present) echo "$value" >> "$zone/$name" ;;
cleanup)
    grep -vxF -e "$value" "$zone/$name" > "$zone/$name.new" || true
    mv "$zone/$name.new" "$zone/$name"
    ;;
*) exit 2 ;;
esac
