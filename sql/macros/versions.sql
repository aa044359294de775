-- Macros of engine versions as lists of numbers, which compare correctly: a release candidate sorts before its release, which ends in 0

-- null: not a release, such as a nightly build
create macro version_numbers(version) as
  case when regexp_matches(version, '^v?[0-9]') then
    regexp_extract_all(replace(split_part(version, '+', 1), 'rc', '.-1.') || '.0', '-?[0-9]+')::bigint[] end;
-- numbers of the row's first version if the row applies to the version (a version without numbers is the newest); otherwise null
create macro holding_version(from_version, version) as
  case when version_numbers(version) is null or version_numbers(from_version) <= version_numbers(version)
       then version_numbers(from_version) end;
-- whether a version lies from from_version up to, but excluding, before_version (null: no end); a version without numbers is the newest
create macro is_of_versions(version, from_version, before_version) as
  holding_version(from_version, version) is not null
  and (before_version is null or holding_version(before_version, version) is null);
-- whether a row's list of words, separated by spaces, names a word; *: any
create macro is_listed(word, words) as words = '*' or coalesce(list_contains(string_split(words, ' '), word), false);
