from ullage.cli import main

main()
